"""Event loops on threads of their own."""
