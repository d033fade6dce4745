"""Headers that handlers add to their answers."""
