"""The child process of a CDC consumer: runs the user's class and feeds it."""
