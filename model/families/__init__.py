"""Families of models: each folder computes one, and the registry finds it by `model_type`."""
