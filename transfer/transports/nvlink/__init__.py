"""Copies between GPUs of one host by CUDA IPC."""
