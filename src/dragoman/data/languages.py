"""Codes of languages: the same one in two letters, three, or with a region; and which are written without spaces."""

from __future__ import annotations

import re

UNSPACED = {"zh", "yue", "wuu", "ja", "th", "lo", "km", "my", "bo"}  # languages without spaces between words
# Codes of three letters, in which many models name their languages, and the same ones in two.
CODES: dict[str, str] = dict(
    re.findall(
        r"(\w+)=(\w+)",
        """
afr=af amh=am arg=an ara=ar asm=as aze=az bak=ba bel=be bul=bg ben=bn bod=bo tib=bo bre=br bos=bs cat=ca ces=cs cze=cs cym=cy wel=cy dan=da
deu=de ger=de dzo=dz ell=el gre=el eng=en epo=eo spa=es est=et eus=eu baq=eu fas=fa per=fa fin=fi fao=fo fra=fr fre=fr fry=fy gle=ga gla=gd
glg=gl guj=gu hau=ha heb=he hin=hi hrv=hr hat=ht hun=hu hye=hy arm=hy ind=id ibo=ig isl=is ice=is ita=it jpn=ja jav=jv kat=ka geo=ka kaz=kk
khm=km kan=kn kor=ko kur=ku kmr=ku kir=ky lat=la ltz=lb lug=lg lin=ln lao=lo lit=lt lav=lv lvs=lv mlg=mg mkd=mk mac=mk mal=ml mon=mn mar=mr
msa=ms may=ms zsm=ms mlt=mt mya=my bur=my nb=no nob=no nor=no nno=nn nep=ne npi=ne nld=nl dut=nl oci=oc orm=om ori=or ory=or pan=pa pol=pl
pus=ps pbt=ps por=pt que=qu ron=ro rum=ro rus=ru kin=rw san=sa sme=se sin=si slk=sk slo=sk slv=sl sna=sn som=so sqi=sq alb=sq srp=sr sot=st
swe=sv swa=sw swh=sw tam=ta tel=te tgk=tg tha=th tuk=tk tgl=tl tur=tr tat=tt uig=ug ukr=uk urd=ur uzb=uz uzn=uz vie=vi vol=vo wln=wa xho=xh
yor=yo zho=zh chi=zh cmn=zh zul=zu""",
    )
)


def code_of(language: str) -> str:
    """de-AT, de_AT, DE, deu -> de"""
    code = language.replace("_", "-").split("-")[0].lower()
    return CODES.get(code, code)


def is_spaced(language: str) -> bool:
    """Whether words of this language can be told apart by spaces."""
    return code_of(language) not in UNSPACED
