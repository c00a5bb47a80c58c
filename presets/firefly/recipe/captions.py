"""English captions of a scene: synonyms, free word order, filler words. The seed of a `random.Random` fixes
them.
"""

from __future__ import annotations

import random

from recipe.world import Scene

NOUN_WORDS: dict[str, tuple[str, ...]] = {
    "dog": ("dog", "puppy", "doggy", "brown dog", "hound"),
    "cat": ("cat", "kitten", "kitty", "yellow cat", "orange cat"),
    "fox": ("fox", "red fox", "orange fox", "fox face"),
    "penguin": ("penguin", "emperor penguin"),
    "car": ("red car", "car", "automobile", "little car", "vehicle"),
    "rocket": ("rocket", "spaceship", "rocket ship", "spacecraft"),
    "boat": ("sail boat", "boat", "sailboat", "sailing boat", "ship", "yacht"),
    "tree": ("tree", "green tree", "oak tree", "oak"),
    "balloon": ("red balloon", "balloon", "party balloon"),
    "butterfly": ("butterfly", "orange butterfly", "monarch butterfly", "monarch"),
    "fish": ("fish", "yellow fish", "tropical fish", "striped fish"),
    "ufo": ("ufo", "flying saucer", "alien ship", "saucer", "UFO"),
}
SETTING_PHRASES: dict[str, tuple[str, ...]] = {
    "field": (
        "in a green field", "in the park", "on the grass", "on a sunny day", "in a meadow", "in the garden",
        "under a blue sky", "in the sunshine", "during the day", "on a lawn",
    ),
    "night": (
        "at night", "on a starry night", "in the dark", "in the moonlight", "under the moon", "at midnight",
        "on a dark night", "under a night sky",
    ),
    "beach": (
        "at the beach", "by the sea", "on the beach", "by the ocean", "at the seaside", "on the shore",
        "near the sea",
        "at sea", "on the water",
    ),
    "desert": (
        "in the desert", "in a sandy desert", "on the dunes", "on sand dunes", "in a hot desert",
        "in the sahara",
    ),
    "snow": (
        "in the snow", "in winter", "on a snowy field", "on a snowy day", "in a snowy landscape",
        "on the ice",
        "in the cold",
    ),
    "space": (
        "in space", "in outer space", "among the stars", "near a planet", "among the stars and planets",
        "in the galaxy", "in the universe",
    ),
    "rain": (
        "in the rain", "on a rainy day", "in a storm", "in rainy weather", "in heavy rain", "while it rains",
        "in a rain shower", "on a wet day",
    ),
}  # fmt: skip
SETTING_ADJECTIVES: dict[str, tuple[str, ...]] = {
    "field": ("sunny", "green"),
    "night": ("dark", "starry"),
    "beach": ("sea",),
    "desert": ("desert",),
    "snow": ("snowy", "winter"),
    "space": ("cosmic",),
    "rain": ("rainy",),
}
SIDE_VERBS = (
    ("runs", "run", "running"), ("walks", "walk", "walking"), ("moves", "move", "moving"),
    ("goes", "go", "going"),
    ("drives", "drive", "driving"), ("flies", "fly", "flying"), ("sails", "sail", "sailing"),
    ("swims", "swim", "swimming"), ("travels", "travel", "travelling"), ("drifts", "drift", "drifting"),
    ("glides", "glide", "gliding"), ("races", "race", "racing"), ("floats", "float", "floating"),
)  # fmt: skip
SIDE_ENDS = {
    "right": ("to the right", "right", "from left to right", "rightwards", "towards the right"),
    "left": ("to the left", "left", "from right to left", "leftwards", "towards the left"),
}
UP_VERBS = (
    ("flies up", "fly up", "flying up"), ("rises", "rise", "rising"), ("goes up", "go up", "going up"),
    ("moves up", "move up", "moving up"), ("floats up", "float up", "floating up"),
    ("takes off", "take off", "taking off"),
    ("rises into the sky", "rise into the sky", "rising into the sky"),
    ("climbs up", "climb up", "climbing up"), ("lifts off", "lift off", "lifting off"),
    ("flies upwards", "fly upwards", "flying upwards"), ("moves upward", "move upward", "moving upward"),
)  # fmt: skip
DOWN_VERBS = (
    ("falls", "fall", "falling"), ("falls down", "fall down", "falling down"),
    ("goes down", "go down", "going down"),
    ("drops down", "drop down", "dropping down"), ("lands", "land", "landing"), ("sinks", "sink", "sinking"),
    ("falls from the sky", "fall from the sky", "falling from the sky"),
    ("moves down", "move down", "moving down"),
    ("comes down", "come down", "coming down"), ("descends", "descend", "descending"),
    ("floats down", "float down", "floating down"), ("flies down", "fly down", "flying down"),
)  # fmt: skip
JUMP_VERBS = (
    ("jumps", "jump", "jumping"), ("hops", "hop", "hopping"), ("bounces", "bounce", "bouncing"),
    ("jumps up and down", "jump up and down", "jumping up and down"), ("leaps", "leap", "leaping"),
    ("bounces up and down", "bounce up and down", "bouncing up and down"),
)  # fmt: skip
STILL_VERBS = (
    ("stands still", "stand still", "standing still"), ("waits", "wait", "waiting"),
    ("stands", "stand", "standing"),
    ("rests", "rest", "resting"), ("does not move", "not move", "not moving"), ("stays", "stay", "staying"),
    ("sits", "sit", "sitting"), ("stays still", "stay still", "staying still"),
)  # fmt: skip
ADJECTIVES = (
    "cute", "little", "small", "big", "happy", "tiny", "pretty", "funny", "lonely", "friendly", "young",
    "old",
    "beautiful", "lovely", "shiny", "sweet", "large", "nice",
)  # fmt: skip
ADVERBS = ("slowly", "quickly", "happily", "quietly", "fast", "gently", "calmly", "again", "smoothly")
OPENINGS = (
    "a video of",
    "a clip of",
    "an animation of",
    "a cartoon of",
    "a short film of",
    "a picture of",
    "scene:",
)
ENDINGS = ("cartoon style", "high quality", "cinematic", "4k", "detailed", "beautiful colours", "flat design")


def verb_phrase(motion: str, rng: random.Random) -> tuple[str, str]:
    """(finite form, participle) of one motion."""
    if motion in SIDE_ENDS:
        finite, _, participle = rng.choice(SIDE_VERBS)
        end = rng.choice(SIDE_ENDS[motion])
        return f"{finite} {end}", f"{participle} {end}"
    table = {"up": UP_VERBS, "down": DOWN_VERBS, "jump": JUMP_VERBS, "still": STILL_VERBS}[motion]
    finite, _, participle = rng.choice(table)
    return finite, participle


def noun_phrase(noun: str, rng: random.Random) -> str:
    """The noun with an article and at times an adjective."""
    word = rng.choice(NOUN_WORDS[noun])
    if rng.random() < 0.25:
        word = f"{rng.choice(ADJECTIVES)} {word}"
    kind = rng.random()
    if kind < 0.15:
        return word
    if kind < 0.45:
        return f"the {word}"
    return f"{'an' if word[0] in 'aeio' else 'a'} {word}"


def plain_caption(scene: Scene, rng: random.Random) -> str:
    """A caption without filler, in one of several word orders."""
    subject = noun_phrase(scene.noun, rng)
    finite, participle = verb_phrase(scene.motion, rng)
    if rng.random() < 0.15:
        adverb = rng.choice(ADVERBS)
        finite, participle = f"{finite} {adverb}", f"{participle} {adverb}"
    place = rng.choice(SETTING_PHRASES[scene.setting])
    if rng.random() < 0.08:
        adjective = rng.choice(SETTING_ADJECTIVES[scene.setting])
        place = f"in a {adjective} scene"
    form = rng.randrange(8)
    if form < 3:
        return f"{subject} {finite} {place}"
    if form == 3:
        return f"{subject} {participle} {place}"
    if form == 4:
        return f"{subject} is {participle} {place}"
    if form == 5:
        return f"{place}, {subject} {finite}"
    if form == 6:
        return f"{place}, {subject} is {participle}"
    return f"{subject} {place} {finite}"


def caption(scene: Scene, rng: random.Random) -> str:
    """A caption as a person might type it: at times with an opening, an ending, capitals or a full stop."""
    text = plain_caption(scene, rng)
    if rng.random() < 0.08:
        text = f"{rng.choice(OPENINGS)} {text}"
    if rng.random() < 0.08:
        text = f"{text}, {rng.choice(ENDINGS)}"
    if rng.random() < 0.3:
        text = text[0].upper() + text[1:]
    if rng.random() < 0.2:
        text += "."
    return text
