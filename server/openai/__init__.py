"""OpenAI's chat and completion endpoints: conversion of request fields to engine requests, and of
sampled tokens to replies."""
