"""What a prompt costs here and elsewhere, learnt from what it cost."""
