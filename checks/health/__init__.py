"""One file per check. A check judges what the view shows it; it never reads."""
