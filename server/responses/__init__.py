"""OpenAI's Responses API: conversion of its items to engine requests, of sampled tokens to its
items, and its stored responses and conversations."""
