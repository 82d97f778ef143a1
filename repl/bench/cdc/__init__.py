"""The benchmark of CDC consumers: their rate, how soon they have what is durable, what they cost, what they can do."""
