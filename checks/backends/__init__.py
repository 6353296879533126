"""How a vendor is read: one file each, and the main of the reader child."""
