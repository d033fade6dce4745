"""Kimi Linear: Kimi Delta Attention (KDA) layers, latent attention, experts chosen with a bias."""
