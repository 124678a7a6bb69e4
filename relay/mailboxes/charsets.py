"""Character sets of mail: the names that are known, and bytes into text.  Pure.

Promises
- A name that a message gives is looked up in a table that is fixed, and nowhere else.  Python's
  own look-up imports a module for each name and keeps every name that it was ever asked for.
- `decode` never raises and is linear: only codecs that replace what they cannot read are here,
  and none of those that are no character sets (punycode, idna, unicode_escape, …).

The names are those of the Encoding Standard (https://encoding.spec.whatwg.org/#names-and-labels)
and those that mail uses besides (IANA's, and Python's).  As there, the names of small sets stand
for the larger ones under whose name they travel: ISO-8859-1 is Windows-1252, GB2312 is GB 18030.
"""

from __future__ import annotations

from collections.abc import Mapping

_MAX_NAME = 60  # characters

# Python's codec, and the names for it as `_plain` spells them.
_NAMES = {
    "utf-8": "utf8 u8 utf unicode11utf8 unicode20utf8 xunicode20utf8 utf8mb4 65001 cp65001",
    "ascii": "ascii usascii us iso646us ansix341968 ansix341986 646 csascii cp367 ibm367 isoir6",
    "cp1252": "cp1252 windows1252 xcp1252 ansi iso88591 iso885911987 iso88591windows30latin1 8859"
    " 88591 latin1 latin l1 isoir100 csisolatin1 ibm819 cp819 unknown8bit 8bit binary default",
    "cp1250": "cp1250 windows1250 xcp1250",
    "cp1251": "cp1251 windows1251 xcp1251",
    "cp1253": "cp1253 windows1253 xcp1253",
    "cp1254": "cp1254 windows1254 xcp1254 iso88599 iso885991989 latin5 l5 isoir148 csisolatin5",
    "cp1255": "cp1255 windows1255 xcp1255",
    "cp1256": "cp1256 windows1256 xcp1256",
    "cp1257": "cp1257 windows1257 xcp1257",
    "cp1258": "cp1258 windows1258 xcp1258",
    "iso8859-2": "iso88592 iso885921987 latin2 l2 isoir101 csisolatin2",
    "iso8859-3": "iso88593 iso885931988 latin3 l3 isoir109 csisolatin3",
    "iso8859-4": "iso88594 iso885941988 latin4 l4 isoir110 csisolatin4",
    "iso8859-5": "iso88595 iso885951988 cyrillic isoir144 csisolatincyrillic",
    "iso8859-6": "iso88596 iso88596e iso88596i iso885961987 arabic asmo708 ecma114 isoir127",
    "iso8859-7": "iso88597 iso885971987 greek greek8 ecma118 elot928 suneugreek isoir126",
    "iso8859-8": "iso88598 iso88598e iso88598i iso885981988 hebrew visual logical isoir138",
    "iso8859-10": "iso885910 iso8859101992 latin6 l6 isoir157 csisolatin6",
    "cp874": "cp874 windows874 iso885911 iso8859112001 tis620 tis62025331 dos874 thai",
    "iso8859-13": "iso885913 latin7 l7",
    "iso8859-14": "iso885914 latin8 l8",
    "iso8859-15": "iso885915 latin9 l9 csisolatin9",
    "iso8859-16": "iso885916 latin10 l10",
    "koi8-r": "koi8r koi8 koi cskoi8r",
    "koi8-u": "koi8u koi8ru",
    "mac-roman": "macintosh mac macroman xmacroman csmacintosh",
    "mac-cyrillic": "maccyrillic xmaccyrillic xmacukrainian",
    "cp437": "cp437 ibm437 437",
    "cp850": "cp850 ibm850 850",
    "cp852": "cp852 ibm852 852",
    "cp855": "cp855 ibm855 855",
    "cp857": "cp857 ibm857 857",
    "cp858": "cp858 ibm858 858",
    "cp866": "cp866 ibm866 866 csibm866",
    "gb18030": "gb18030 gb2312 gbk xgbk gb xeuccn euccn eucgb2312cn chinese csgb2312 gb231280"
    " csiso58gb231280 isoir58 cp936 936 ms936 windows936 x936",
    "hz": "hz hzgb hzgb2312",
    "big5hkscs": "big5 big5hkscs big5tw csbig5 cnbig5 xxbig5 big5eten",
    "cp950": "cp950 950 ms950 windows950",
    "euc_jp": "eucjp xeucjp ujis cseucpkdfmtjapanese",
    "cp932": "shiftjis sjis xsjis mskanji csshiftjis cp932 932 ms932 windows31j windows932",
    "iso2022_jp": "iso2022jp csiso2022jp",
    "iso2022_jp_1": "iso2022jp1",
    "iso2022_jp_2": "iso2022jp2",
    "iso2022_jp_3": "iso2022jp3",
    "iso2022_jp_ext": "iso2022jpext iso2022jpms cp50220 cp50221",
    "cp949": "euckr cseuckr korean ksc5601 ksc56011987 ksc56011989 ksx1001 isoir149"
    " csksc56011987 cp949 949 ms949 uhc windows949",
    "iso2022_kr": "iso2022kr csiso2022kr",
    "johab": "johab cp1361 ms1361",
    "utf-16": "utf16 u16 unicode ucs2 iso10646ucs2 csunicode unicodefeff",
    "utf-16-le": "utf16le unicodefffe unicodelittleunmarked",
    "utf-16-be": "utf16be unicodebigunmarked",
    "utf-32": "utf32 u32 ucs4 iso10646ucs4",
    "utf-32-le": "utf32le",
    "utf-32-be": "utf32be",
    "utf-7": "utf7 u7 unicode11utf7 xunicode20utf7 unicode20utf7 csunicode11utf7",
}
CODECS: Mapping[str, str] = {
    name: codec for codec, names in _NAMES.items() for name in names.split()
}
"""Python's codec by the name of a character set, in small letters without punctuation."""

_PUNCTUATION = {ord(character): None for character in "-_.:+/ '\"()\t\r\n"}


def codec_of(charset: str) -> str | None:
    """The name of Python's codec for a character set as a message names it, or None."""
    if len(charset) > _MAX_NAME:
        return None
    name = charset.lower()
    # First as nearly all are spelled: to translate takes longer than all the rest.
    return CODECS.get(name.replace("-", "")) or CODECS.get(name.translate(_PUNCTUATION))


def decode(data: bytes, charset: str) -> str:
    """`data` in the character set that was declared ("": none was).

    Where that is unknown, or no more than ASCII, it is UTF-8, and if it cannot be, Windows-1252.
    """
    codec = codec_of(charset) if charset else None
    if codec is not None and codec not in ("ascii", "utf-8"):
        return data.decode(codec, "replace")
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("utf-8" if codec == "utf-8" else "cp1252", "replace")


def gives_halves(charset: str) -> bool:
    """Whether `decode` may give a lone surrogate, which is in no UTF-8, for this character set."""
    codec = codec_of(charset) if charset else None
    return codec is not None and codec.startswith("utf-") and codec != "utf-8"
