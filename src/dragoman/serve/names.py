"""English names of languages, as LibreTranslate's clients show them."""

from __future__ import annotations

import re

from dragoman.data.languages import code_of

NAMES: dict[str, str] = dict(
    re.findall(
        r"(\w+)=([^,]+)",
        """
af=Afrikaans, am=Amharic, an=Aragonese, ar=Arabic, as=Assamese, az=Azerbaijani, ba=Bashkir, be=Belarusian, bg=Bulgarian, bn=Bengali,
bo=Tibetan, br=Breton, bs=Bosnian, ca=Catalan, cs=Czech, cy=Welsh, da=Danish, de=German, dz=Dzongkha, el=Greek, en=English, eo=Esperanto,
es=Spanish, et=Estonian, eu=Basque, fa=Persian, fi=Finnish, fo=Faroese, fr=French, fy=West Frisian, ga=Irish, gd=Scottish Gaelic,
gl=Galician, gu=Gujarati, ha=Hausa, he=Hebrew, hi=Hindi, hr=Croatian, ht=Haitian Creole, hu=Hungarian, hy=Armenian, id=Indonesian, ig=Igbo,
is=Icelandic, it=Italian, ja=Japanese, jv=Javanese, ka=Georgian, kk=Kazakh, km=Khmer, kn=Kannada, ko=Korean, ku=Kurdish, ky=Kyrgyz,
la=Latin, lb=Luxembourgish, lg=Ganda, ln=Lingala, lo=Lao, lt=Lithuanian, lv=Latvian, mg=Malagasy, mk=Macedonian, ml=Malayalam,
mn=Mongolian, mr=Marathi, ms=Malay, mt=Maltese, my=Burmese, ne=Nepali, nl=Dutch, nn=Norwegian Nynorsk, no=Norwegian, oc=Occitan, om=Oromo,
or=Odia, pa=Punjabi, pl=Polish, ps=Pashto, pt=Portuguese, qu=Quechua, ro=Romanian, ru=Russian, rw=Kinyarwanda, sa=Sanskrit,
se=Northern Sami, si=Sinhala, sk=Slovak, sl=Slovenian, sn=Shona, so=Somali, sq=Albanian, sr=Serbian, st=Southern Sotho, sv=Swedish,
sw=Swahili, ta=Tamil, te=Telugu, tg=Tajik, th=Thai, tk=Turkmen, tl=Tagalog, tr=Turkish, tt=Tatar, ug=Uyghur, uk=Ukrainian, ur=Urdu,
uz=Uzbek, vi=Vietnamese, vo=Volapük, wa=Walloon, wuu=Wu Chinese, xh=Xhosa, yo=Yoruba, yue=Cantonese, zh=Chinese, zu=Zulu""",
    )
)


def name_of(language: str) -> str:
    """German for de and deu, Portuguese (BR) for pt_BR; the code itself where no name is known."""
    region = language.replace("_", "-").partition("-")[2]
    name = NAMES.get(code_of(language))
    return language if name is None else f"{name} ({region})" if region else name
