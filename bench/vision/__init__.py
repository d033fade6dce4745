"""The rows of `tasuki bench pictures`: drawn pictures, a checkpoint with a tower, chats, cases."""
