"""Observes nodes, plans, and acts: what `tasuki ray --plan` runs beside the nodes it placed."""
