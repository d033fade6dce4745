"""Pictures for Qwen3.5 models: pixels, vision tower, positions. See docs/vision.md."""
