"""How the systems are spoken to, so that a stage need not know which one it measures."""
