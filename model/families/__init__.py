"""Families of models: what each computes, reads, caches and costs."""
