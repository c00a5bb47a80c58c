"""The fixed prompts of the evaluation: trained combinations and combinations that no training clip shows."""

from __future__ import annotations

from dataclasses import dataclass

from recipe.world import Scene


@dataclass(frozen=True)
class Prompt:
    """What is typed and what it asks for."""

    text: str
    noun: str
    setting: str
    motion: str

    @property
    def held_out(self) -> bool:
        return Scene(self.noun, self.setting, self.motion, 0).held_out


TRAINED = (
    Prompt("a dog runs to the right in the rain", "dog", "rain", "right"),
    Prompt("a dog runs to the left on the beach", "dog", "beach", "left"),
    Prompt("the puppy is jumping in the park", "dog", "field", "jump"),
    Prompt("at night, a cat walks to the right", "cat", "night", "right"),
    Prompt("a cat stands still in the rain", "cat", "rain", "still"),
    Prompt("a little kitten jumps on the dunes", "cat", "desert", "jump"),
    Prompt("a fox runs to the left in the desert", "fox", "desert", "left"),
    Prompt("the fox hops in the snow", "fox", "snow", "jump"),
    Prompt("a fox falls from the sky at the seaside", "fox", "beach", "down"),
    Prompt("a penguin jumps in the snow", "penguin", "snow", "jump"),
    Prompt("a penguin walks to the left at night", "penguin", "night", "left"),
    Prompt("in space, a penguin flies upwards", "penguin", "space", "up"),
    Prompt("a red car drives to the left in the park", "car", "field", "left"),
    Prompt("a red car drives to the right in the rain", "car", "rain", "right"),
    Prompt("the car is waiting on a snowy day", "car", "snow", "still"),
    Prompt("a rocket flies up in space", "rocket", "space", "up"),
    Prompt("a rocket lifts off in the desert", "rocket", "desert", "up"),
    Prompt("on a dark night, a rocket lands", "rocket", "night", "down"),
    Prompt("a sail boat moves to the left by the sea", "boat", "beach", "left"),
    Prompt("the boat sails to the right in a storm", "boat", "rain", "right"),
    Prompt("a boat rests at night", "boat", "night", "still"),
    Prompt("a tree stands still in a meadow", "tree", "field", "still"),
    Prompt("a tree jumps in the snow", "tree", "snow", "jump"),
    Prompt("the tree moves to the left in the rain", "tree", "rain", "left"),
    Prompt("a red balloon rises in the park", "balloon", "field", "up"),
    Prompt("a balloon floats down among the stars", "balloon", "space", "down"),
    Prompt("a balloon drifts to the right at the beach", "balloon", "beach", "right"),
    Prompt("a butterfly flies to the right in the meadow", "butterfly", "field", "right"),
    Prompt("a butterfly rises in the rain", "butterfly", "rain", "up"),
    Prompt("on a starry night, a butterfly comes down", "butterfly", "night", "down"),
    Prompt("a yellow fish swims to the left in outer space", "fish", "space", "left"),
    Prompt("a fish jumps at the beach", "fish", "beach", "jump"),
    Prompt("a fish falls down in winter", "fish", "snow", "down"),
    Prompt("a ufo flies down over a field at night", "ufo", "night", "down"),
    Prompt("a flying saucer moves to the right in the desert", "ufo", "desert", "right"),
    Prompt("a ufo stands still in space", "ufo", "space", "still"),
)
UNSEEN = (
    Prompt("a fish swims to the right in the desert", "fish", "desert", "right"),
    Prompt("a fish jumps on the dunes", "fish", "desert", "jump"),
    Prompt("a tree flies up in space", "tree", "space", "up"),
    Prompt("a tree moves to the right in outer space", "tree", "space", "right"),
    Prompt("a ufo flies to the left at the beach", "ufo", "beach", "left"),
    Prompt("a ufo comes down by the sea", "ufo", "beach", "down"),
    Prompt("a cat runs to the right in the snow", "cat", "snow", "right"),
    Prompt("the cat stands still in winter", "cat", "snow", "still"),
    Prompt("a red car flies upwards in the park", "car", "field", "up"),
    Prompt("a car rises in the rain", "car", "rain", "up"),
    Prompt("a boat jumps at the beach", "boat", "beach", "jump"),
    Prompt("the sail boat hops at night", "boat", "night", "jump"),
    Prompt("a penguin falls from the sky in the rain", "penguin", "rain", "down"),
    Prompt("a penguin comes down in the desert", "penguin", "desert", "down"),
    Prompt("a penguin lands in the snow", "penguin", "snow", "down"),
    Prompt("a fish rests in the desert", "fish", "desert", "still"),
)
ALL = (*TRAINED, *UNSEEN)
