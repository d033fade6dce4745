"""Pictures for Qwen3.5 models: pixels, the vision tower, and positions in a prompt. See
docs/vision.md."""
