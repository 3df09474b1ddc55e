//! Which workers there are, how they are, and what they have in hand.
