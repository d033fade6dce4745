"""How many nodes of each role a fleet needs: pure functions of what was lately observed of it."""
