"""Who the members are, what they tell each other, and what is believed of it."""
