"""The layers of Qwen4-Exp in PyTorch, with its draft layer."""
