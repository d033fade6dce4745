"""The demonstration's conversation: ten turns of an assistant that reads letters through a tool.

Data and pure functions only. The first turn sets the scene, each later one brings what a tool
returned or what the person asks next; every turn adds several hundred tokens, so that the context
grows as an agent's does.
"""

from collections.abc import Mapping, Sequence

Turn = Sequence[Mapping[str, str]]

_SCENE = (
    "You are a patient and sensible assistant in the house of Mrs. Harville. You keep her letters"
    " in order, you read them aloud when she desires it, and you may consult the library through "
    "a tool. Whatever the tool returns is to be considered with candour, and answered in a few "
    "plain sentences, such as a person of education might use in conversation."
)

_OPENING = (
    "I have been so much engaged this fortnight that I have not opened half the letters which lie"
    " upon the table. My sister writes from Bath, Captain Harville from Portsmouth, and there is "
    "one from Lady Denham which I am almost afraid to read. Pray begin with the first, and tell "
    "me what you think of it; but let me have your opinion without ceremony, for I am tired of "
    "being agreed with."
)

_REQUESTS = (
    "Very well. Now let us have the letter from Bath, and tell me whether my sister is in earnest.",
    "I thought as much. Read me the Captain's next, and observe what he says of the weather.",
    "He was always of a cheerful temper. What does Lady Denham want with us, after so long a "
    "silence?",
    "It would be uncivil to refuse her, and imprudent to consent. What would you advise me to say?",
    "Let that be put aside until tomorrow. Is there any news of the young people at the parsonage?",
    "I am surprised at it, and yet I ought not to be. Find what was written of it in the spring.",
    "How differently it all appears now! Go on, and do not spare me the particulars of the ball.",
    "We must think of the journey. See what is said of the roads, and of the inn at Sidmouth.",
    "That is enough for one evening. Tell me, before you go, what you think of us all.",
)

_LETTERS = (
    (
        "My dear Anne, you will be glad to hear that we arrived here on Tuesday, after a journey "
        "of great fatigue but no accident. The lodgings are small, though the situation is as "
        "good as any in the town, and my father declares that he never saw a better prospect from"
        " a window.",
        "We have been every morning to the rooms, where there is always a crowd, and nobody in it"
        " whom one could wish to know. Mrs. Allen talks of returning before the end of the month.",
    ),
    (
        "I am not in the least altered in my opinion of him. He has good sense, and a good "
        "fortune, and I believe he has a good heart; but he has not the manners which would make "
        "any of the three agreeable, and I cannot help wishing that he would speak a little less "
        "of his horses.",
        "You will say that I am too nice. Perhaps I am; but I have seen enough of marriages which"
        " began in convenience, and ended in silence, to be in no hurry for one of my own.",
    ),
    (
        "We have had nothing but wind since Sunday, and the children are kept within doors, which"
        " is a trial to every body. Little Charles has made a ship of the two parlour chairs, and"
        " will not suffer them to be used for any other purpose until she comes safe into "
        "harbour.",
        "The Admiral dined with us yesterday, and was so good as to praise the mutton. He asked "
        "after you very particularly, and desired me to say that the garden is as you left it.",
    ),
    (
        "Lady Denham presents her compliments, and would be much obliged by the company of Mrs. "
        "Harville and her young friend for the whole of the month of August. There is a room "
        "towards the sea, which was very lately papered, and in which nobody has ever been known "
        "to be ill.",
        "She thinks it right to mention that the party will be a small one, that dinner is at "
        "four, and that she does not keep a carriage for the use of those who have two feet to "
        "walk upon.",
    ),
    (
        "There is a great deal to be said upon both sides, and your friends have already said it."
        " If you go, you will be thought to want something of her; if you stay, you will be "
        "thought to want nothing, which a woman of her consequence is still less likely to "
        "forgive.",
        "I have known her these twenty years, and have never yet seen her the worse for a "
        "refusal, when it was given early, given civilly, and given with a reason that was not "
        "quite true.",
    ),
    (
        "The young people are as happy as a small income and a large acquaintance can make them. "
        "Mr. Wentworth reads to her in the evening, and she has learnt to be silent for an hour "
        "together, which those who knew her as a girl would hardly have believed to be possible.",
        "They have been twice to dine at the great house. She wore her white muslin both times, "
        "and was told by every lady in the room how well she looked in it, and how well it had "
        "lasted.",
    ),
    (
        "It was in April, upon the hill above the church, that he first spoke to her. She was so "
        "far from expecting it that she answered him as if he had asked the way; and he, "
        "supposing this to be all her answer, bowed, and walked down the hill without looking "
        "once behind him.",
        "Happily there was a shower. He came back to offer her his umbrella, she laughed, and in "
        "a quarter of an hour they understood one another as well as they have ever done since.",
    ),
    (
        "There were twelve couple, and a supper. Miss Musgrove danced every dance, and would have"
        " danced them over again if the musicians had not fallen asleep. Sir William stood the "
        "whole evening by the fire, and observed to any one who came near him that he never felt "
        "the cold.",
        "Your cousin was very much admired. She sat down two dances only, and both times from "
        "choice, as I can witness, for I heard her refuse Mr. Price, and saw her regret it "
        "directly.",
    ),
    (
        "The road by the coast is the shorter, and the road by the forest is the better; the "
        "coachman will take whichever he is told not to. You should sleep at Sidmouth, where the "
        "inn has two good chambers, and a landlady who cannot be persuaded that any guest has "
        "eaten enough.",
        "Bring your warm shawl, and something to read upon the way. I have known that journey "
        "take nine hours, and I have known it take two days, and there was no difference in the "
        "roads.",
    ),
)

_CATALOGUE = (
    "The library has also these notes upon the same subject, which were put away in the year they"
    " were written, and have not been disturbed since. The first is in a hand that is not known; "
    "the second is signed, but the name has been scratched out with a penknife; and the third is "
    "only a list of what was sent to the laundress, upon the back of which somebody has written "
    "that happiness is chiefly a matter of having been taught, early in life, to expect a "
    "reasonable quantity of it."
)


def turns() -> list[Turn]:
    """Messages of the ten turns, each with role and content; answers come between them."""
    script: list[Turn] = [
        [
            {"role": "system", "content": _SCENE},
            {"role": "user", "content": f"{_OPENING}\n\n{_found(0)}"},
        ]
    ]
    for number, request in enumerate(_REQUESTS, 1):
        letter = _found(number % len(_LETTERS))
        script.append([{"role": "user", "content": f"{request}\n\n{letter}"}])
    return script


def _found(number: int) -> str:
    """What the tool returns: a letter, another beside it, and the library's notes."""
    first, second = _LETTERS[number]
    beside = " ".join(_LETTERS[(number + 4) % len(_LETTERS)])
    return (
        f"The tool returned letter {number + 1}.\n{first}\n{second}\n\n"
        f"It was found together with another.\n{beside}\n\n{_CATALOGUE}"
    )
