"""What the pages that links in mail lead to say, in each language that they speak.

Promises: a text has all of its languages, or it is no text; whoever opens a page reads the one that
the browser asks for first (`Accept-Language`), and English if it asks for none of them.

Fails: never; a language that nobody speaks here is English.
"""

from __future__ import annotations

from typing import NamedTuple

from quart import request


class Text(NamedTuple):
    """One text, in every language; a fragment of HTML, without elements."""

    en: str
    de: str


def language() -> str:
    """Return the language that the current request is answered in."""
    return request.accept_languages.best_match(Text._fields, default="en")


def said(text: Text) -> str:
    """Return a text in the language of the current request."""
    return str(getattr(text, language()))


UNSUBSCRIBE = Text("Unsubscribe", "Abmelden")
UNSUBSCRIBE_ASK = Text(
    "Do you want no more newsletters and other bulk mail from this sender? Mail that is for you "
    "alone, such as receipts, still comes.",
    "Sollen von diesem Absender keine Newsletter und andere Massenmails mehr kommen? Mail, die nur "
    "für Sie bestimmt ist, etwa Rechnungen, kommt weiterhin.",
)
UNSUBSCRIBE_FROM = Text("From", "Von")
UNSUBSCRIBE_TO = Text("To", "An")
UNSUBSCRIBED = Text("You are unsubscribed", "Sie sind abgemeldet")
UNSUBSCRIBED_HINT = Text(
    "This sender sends you no more bulk mail; what is on its way may still arrive.",
    "Dieser Absender sendet Ihnen keine Massenmails mehr; was unterwegs ist, kann noch ankommen.",
)
UNSUBSCRIBE_DEAD = Text(
    "This link cannot be used: it was copied in part, or is not from here.",
    "Dieser Link lässt sich nicht benutzen: Er wurde nur zum Teil kopiert oder ist nicht von hier.",
)
UNSUBSCRIBE_DEAD_HINT = Text(
    "Open the link as it stands in the mail, or ask its sender.",
    "Öffnen Sie den Link, wie er in der Mail steht, oder fragen Sie den Absender.",
)
TRY_AGAIN = Text(
    "Something is out of order: try again.",
    "Etwas ist nicht in Ordnung: Bitte versuchen Sie es noch einmal.",
)

ACTIVATION = Text("Activate your account", "Konto aktivieren")
ACTIVATION_ASK = Text(
    "One more step: confirm that this is you.",
    "Noch ein Schritt: Bestätigen Sie, dass Sie es sind.",
)
ACTIVATE = Text("Activate", "Aktivieren")
ACTIVATION_HINT = Text(
    "If your account is active already, there is nothing left to do. Otherwise:",
    "Ist Ihr Konto schon aktiv, bleibt nichts mehr zu tun. Sonst:",
)
ACTIVATION_RESENT = Text(
    "If the account is not active yet, a new mail is on its way to its address, at most five in 15 "
    "minutes. If it is active, sign in as usual.",
    "Ist das Konto noch nicht aktiv, ist eine neue Mail an seine Adresse unterwegs, höchstens fünf "
    "in 15 Minuten. Ist es aktiv, melden Sie sich an wie sonst.",
)
ACTIVATED = Text("Your account is active", "Ihr Konto ist aktiv")
ACTIVATED_HINT = Text("You may close this page.", "Sie können diese Seite schließen.")

RECOVERY = Text("Recover your account", "Konto wiederherstellen")
RECOVERY_ASK = Text(
    "Enter the five digits from the mail that brought you here.",
    "Geben Sie die fünf Ziffern aus der Mail ein, die Sie hierher geführt hat.",
)
CODE = Text("Code", "Code")
CONTINUE = Text("Continue", "Weiter")
RECOVERY_HINT = Text("You may ask for another:", "Sie können einen neuen anfordern:")
RECOVERY_REFUSED = Text(
    "That did not work: the code is not the one of the mail, or the link has been used before, or "
    "is too old.",
    "Das hat nicht geklappt: Der Code ist nicht der aus der Mail, oder der Link wurde schon "
    "benutzt oder ist zu alt.",
)
RECOVERY_RESENT = Text(
    "If that link was mailed lately and the account is active, a new mail is on its way to its "
    "address, at most five in 15 minutes.",
    "Wurde dieser Link vor Kurzem gemailt und ist das Konto aktiv, ist eine neue Mail an seine "
    "Adresse unterwegs, höchstens fünf in 15 Minuten.",
)
RECOVERED = Text("It is you", "Sie sind es")
RECOVERED_HINT = Text(
    "Go back to where you asked for this, and go on there.",
    "Gehen Sie dorthin zurück, wo Sie dies angefordert haben, und machen Sie dort weiter.",
)

RESEND = Text("Mail me a new link", "Neuen Link zusenden")
RESENT = Text("A new mail", "Eine neue Mail")
DEAD = Text(
    "This link is no longer valid: it has been used before, or is too old, or was copied in part.",
    "Dieser Link gilt nicht mehr: Er wurde schon benutzt, ist zu alt oder wurde nur teilweise "
    "kopiert.",
)
