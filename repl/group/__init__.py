"""The members: who they are, what they tell each other, and what is believed of it."""
