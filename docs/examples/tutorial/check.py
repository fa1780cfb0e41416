from prices import discounted

for price, percent, expected in [(80, 25, 60), (50, 10, 45)]:
    found = discounted(price, percent)
    print("ok" if found == expected else "WRONG", f"{percent} % off {price} is {found:g}")
