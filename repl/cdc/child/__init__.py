"""The child process of a CDC consumer: the user's class, and what feeds it."""
