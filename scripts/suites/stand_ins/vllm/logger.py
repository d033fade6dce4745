"""A stand-in for vLLM's loggers, with the interface used by its tests."""

import logging


def init_logger(name: str) -> logging.Logger:
    return logging.getLogger(name)
