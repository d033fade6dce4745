"""What a step and a prompt spend their time on."""
