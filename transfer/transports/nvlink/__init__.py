"""Transport by copies between GPUs of one host, with CUDA IPC."""
