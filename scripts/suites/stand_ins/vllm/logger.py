"""Loggers by name, with the interface used by vLLM's tests."""

import logging


def init_logger(name: str) -> logging.Logger:
    return logging.getLogger(name)
