"""What comes back of mail that was sent: where it comes to, what it says, what follows from it."""
