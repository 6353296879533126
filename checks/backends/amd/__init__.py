"""AMD Instinct accelerators, read through AMD SMI."""
