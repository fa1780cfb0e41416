def discounted(price, percent):
    """Return the price after a discount in percent."""
    return price - percent
