"""Anthropic's Messages API: conversion of its requests to engine requests, and of sampled tokens to
its replies."""
