"""Rows of several tokens whose last ones are drafts, through a GDN layer: outputs now, states once
it shows how many tokens hold."""
