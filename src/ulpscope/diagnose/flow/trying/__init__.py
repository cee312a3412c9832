"""Operations tried on numbers like those that were recorded, before anything is said of them."""
