"""The daemon that reads a prompt and hands its prefix on."""
