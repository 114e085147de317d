"""What happened to a page: a table of walls and look-alikes for each outcome, in the languages people meet them in."""

from __future__ import annotations

import pytest

from trawl.fetchers.outcome import classify_html, classify_status

ARTICLE = """
<p>The station was built in the spring of the third year, when the ice had gone and the road was dry again.</p>
<p>Four people lived in it over the first winter. They wrote down the wind, the snow and the hours of light.</p>
<p>In March the roof was mended, and the old lamp gave way to one that burns oil. Nobody missed the old one.</p>
<p>What the crew learned is kept in the notes below. They are short on purpose, and they give the exact values.</p>
"""

BLOCKED = {
    "cloudflare challenge": (
        403,
        """<html><head><title>Just a moment...</title></head><body><noscript>Enable JavaScript and cookies to
        continue</noscript><script>window._cf_chl_opt={cvId:'3'};</script></body></html>""",
    ),
    "cloudflare challenge that claims 200": (
        200,
        """<title>Just a moment...</title><body><div>Verifying you are human. This may take a few seconds.
        example.com needs to review the security of your connection before proceeding.</div></body>""",
    ),
    "cloudflare 1020": (
        403,
        """<title>Attention Required! | Cloudflare</title><div id="cf-error-details"><h1>Sorry, you have been
        blocked</h1>
        <h2>You are unable to access example.com</h2><p>This website is using a security service to protect itself from
        online attacks. The action you just performed triggered the security solution. There are several actions that
        could trigger this block including submitting a certain word or phrase, a SQL command or malformed data.</p>
        <p>You can email the site owner to let them know you were blocked. Please include what you were
        doing.</p></div>""",
    ),
    "datadome": (
        403,
        """<html><head><title>example.com</title></head><body><p id="cmsg">Please enable JS and disable any ad
        blocker</p>
        <script>var dd={'rt':'c','host':'geo.captcha-delivery.com'}</script>
        <script src="https://ct.captcha-delivery.com/c.js"></script></body></html>""",
    ),
    "perimeterx": (
        403,
        """<title>Access to this page has been denied.</title><div class="px-captcha-container"><div
        id="px-captcha"></div>
        <h1>Press &amp; Hold to confirm you are a human (and not a bot).</h1><p>Reference ID 1234</p></div>""",
    ),
    "akamai": (
        403,
        """<HTML><HEAD><TITLE>Access Denied</TITLE></HEAD><BODY><H1>Access Denied</H1>
        You don't have permission to access "http&#58;&#47;&#47;shop&#46;test&#47;" on this server.<P>
        Reference&#32;&#35;18&#46;2d351ab8&#46;1557333295&#46;a4e16ab</BODY></HTML>""",
    ),
    "imperva in a frame": (
        200,
        """<html><head><META NAME="robots" CONTENT="noindex,nofollow"></head><body><iframe
        src="/_Incapsula_Resource?SWUDNSAI=31&xinfo=1">Request unsuccessful. Incapsula incident ID:
        1-2</iframe></body>""",
    ),
    "distil": (
        200,
        """<title>Pardon Our Interruption</title><h1>Pardon Our Interruption...</h1><p>As you were browsing
        something about
        your browser made us think you were a bot. There are a few reasons this might happen:</p><ul><li>You're a power
        user moving through this website with super-human speed.</li><li>You've disabled cookies in your web
        browser.</li></ul><p>To regain access, please make sure that cookies and JavaScript are enabled.</p>""",
    ),
    "sucuri": (
        403,
        """<title>Sucuri WebSite Firewall - Access Denied</title><h1>Access Denied - Sucuri Website Firewall</h1>
        <p>If you are the site owner (or you manage this site), please whitelist your IP.</p>""",
    ),
    "kasada": (429, "<html><body><script>window.KPSDK={};KPSDK.now=1</script><script src='/x/ips.js'></script></body>"),
    "aws waf": (
        202,
        """<html><head><title></title><script>window.awsWafCookieDomainList = [];</script><script
        src="https://x.token.awswaf.com/x/challenge.js"></script></head><body><div id="challenge-container"></div>
        <noscript><h1>JavaScript is disabled</h1>In order to continue, we need to verify that you're not a robot. This
        requires JavaScript.</noscript></body>""",
    ),
    "duckduckgo anomaly": (
        202,
        """<title>DuckDuckGo</title><form action="//duckduckgo.com/anomaly.js?sv=html"><div
        class="anomaly-modal__title">
        Unfortunately, bots use DuckDuckGo too.</div><div>Please complete the following challenge to confirm this search
        was made by a human.</div><div>Select all squares containing a duck:</div><button>Submit</button></form>""",
    ),
    "google sorry": (
        429,
        """<title>https://www.google.com/search?q=x</title><form id="captcha-form" action="index"><div
        class="g-recaptcha">
        </div></form><div>Our systems have detected unusual traffic from your computer network.</div>""",
    ),
    "amazon": (
        200,
        """<title>Amazon.com</title><h4>Enter the characters you see below</h4><p>Sorry, we just need to make
        sure you're
        not a robot. For best results, please make sure your browser is accepting cookies.</p>
        <form action="/errors/validateCaptcha"><input name="field-keywords"><button>Continue
        shopping</button></form>""",
    ),
    "anubis": (
        200,
        """<title>Making sure you're not a bot!</title><h1>Making sure you're not a bot!</h1><p>Loading...</p>
        <script id="anubis_challenge" type="application/json">{}</script><p>You are seeing this because the
        administrator
        of this website has set up Anubis to protect the server against aggressive scraping. This can and does cause
        downtime. Anubis is a compromise. It uses a proof of work scheme. The idea is that at individual scales the
        additional load is ignorable, but at mass scraper levels it adds up.</p>""",
    ),
    "rate limit": (429, "<html><body><h1>Slow down</h1></body></html>"),
    "german": (403, "<title>Zugriff verweigert</title><p>Ihre IP-Adresse wurde gesperrt.</p>"),
    "german question": (
        200,
        "<title>Shop</title><p>Bitte bestätigen Sie, dass Sie ein Mensch sind.</p><div class='h-captcha'></div>",
    ),
    "french": (403, "<title>Accès refusé</title><p>Vous avez été bloqué.</p>"),
    "spanish": (200, "<title>Un momento…</title><p>Verifique que usted es un ser humano.</p>"),
    "italian": (403, "<h1>Accesso negato</h1><p>Abbiamo rilevato traffico insolito dalla tua rete.</p>"),
    "portuguese": (200, "<title>Verificação de segurança</title><p>Confirme que você não é um robô.</p>"),
    "dutch": (200, "<title>Even geduld a.u.b.</title><p>Bevestig dat u een mens bent.</p>"),
    "polish": (200, "<title>Sklep</title><p>Potwierdź, że jesteś człowiekiem, aby przejść dalej.</p>"),
    "russian": (200, "<title>Вы не робот?</title><p>Подтвердите, что запросы отправляли вы, а не робот.</p>"),
    "turkish": (403, "<title>Erişim engellendi</title><p>Robot olmadığınızı doğrulayın.</p>"),
    "japanese": (200, "<title>セキュリティチェック</title><p>ロボットではないことを確認してください。</p>"),
    "chinese": (200, "<title>百度安全验证</title><p>请完成安全验证后继续访问。</p>"),
    "korean": (200, "<title>보안 확인</title><p>로봇이 아닙니다에 체크해 주세요.</p>"),
    "arabic": (403, "<title>تم رفض الوصول</title><p>يرجى التأكد من أنك لست روبوت.</p>"),
}

LOGIN = {
    "password form": (
        """<title>Sign in - Member library</title><h1>Sign in</h1><p>The library is open to members. Please use your
        number.</p><form action="/login"><input name="u"><input type="password"><button>Sign in</button></form>"""
    ),
    "with lines of help": (
        """<title>Log in | Archive</title><h1>Log in</h1><form><input name="u"><input type=password></form>
        <p>Reading room cards are valid for two years. If yours has run out, ask at the desk. Bring a document with your
        address. The desk is open from nine to five. Groups should write first. We answer within three working
        days.</p>"""
    ),
    "words only": "<title>Members</title><p>You must be logged in to view this page.</p><a href='/login'>Log in</a>",
    "german": "<title>Anmelden</title><form>Kennwort <input type=password></form><p>Bitte melden Sie sich an.</p>",
    "french": "<h1>Connexion</h1><form><input type=password></form><a>Mot de passe oublié ?</a>",
    "spanish": "<title>Iniciar sesión | Portal</title><form><input type=password></form>",
    "italian": "<title>Accedi</title><form><input type=password></form>",
    "portuguese": "<title>Fazer login</title><form><input type=password></form>",
    "polish": "<title>Logowanie</title><form><input type=password></form>",
    "russian": "<title>Вход в личный кабинет</title><form><input type=password></form>",
    "turkish": "<title>Giriş yap</title><form><input type=password></form>",
    "japanese": "<title>ログイン</title><p>ログインしてください。</p><form><input type=password></form>",
    "chinese": "<title>用户登录</title><form><input type=password></form>",
    "korean": "<title>로그인</title><p>로그인이 필요합니다.</p><form><input type=password></form>",
}

CONSENT = {
    "english": (
        """<title>Before you continue</title><h1>Before you continue</h1><p>We and our partners use cookies and data to
        deliver and maintain services, measure audience engagement and show personalised ads. If you choose to accept
        all, we also use cookies to develop new services. You can change your consent at any time in the privacy
        settings.</p><button>Accept all</button><button>Reject all</button>"""
    ),
    "german": (
        """<title>Zeitung</title><h2>Ihre Privatsphäre</h2><p>Wir und unsere Partner verwenden Cookies, um Inhalte und
        Anzeigen zu personalisieren. Mit Ihrer Einwilligung verarbeiten wir personenbezogene Daten. Sie können Ihre
        Zustimmung jederzeit in der Datenschutzerklärung widerrufen.</p><button>Alle akzeptieren</button>"""
    ),
    "french": (
        """<title>Journal</title><p>Nous et nos partenaires utilisons des cookies pour stocker des données personnelles.
        Vous pouvez retirer votre consentement à tout moment. Ces cookies servent à mesurer l'audience du site.</p>
        <button>Tout accepter</button>"""
    ),
}

PAYWALL = {
    "metadata and offer": (
        """<title>The late road</title><script type="application/ld+json">{"@type":"NewsArticle",
        "isAccessibleForFree":"False"}</script><h1>The late road</h1><p>The road opened five weeks late this year. The
        drivers blame the wind, and the real reason</p><div><h3>Read on with a subscription</h3><a>Subscribe
        now</a></div>"""
    ),
    "microdata": (
        """<title>Deep water</title><meta itemprop="isAccessibleForFree" content="false"><p>The harbour was dredged in
        June and again in August, which the town had not planned. What it will cost</p><a>Abonnieren</a>"""
    ),
    "offer without metadata": (
        """<title>Snow</title><h1>Snow</h1><p>It snowed for nine days in the upper valley, longer than anyone there can
        remember.</p><h2>Subscribe to continue reading</h2><p>Only 1 euro a month.</p><button>Subscribe</button>
        <a>Already a subscriber? Log in</a>"""
    ),
    "german": (
        """<title>Schnee</title><h1>Schnee</h1><p>Neun Tage lang schneite es im oberen Tal, länger als je zuvor.</p>
        <h2>Jetzt weiterlesen mit Nordpost Plus</h2><p>Exklusiv für Abonnenten.</p><button>Abo abschließen</button>"""
    ),
    "french": (
        """<title>Neige</title><p>Il a neigé neuf jours durant dans la haute vallée, plus longtemps que jamais.</p>
        <h2>Cet article est réservé aux abonnés</h2><button>Abonnez-vous</button>"""
    ),
    "japanese": (
        """<title>雪</title><p>上の谷では九日間雪が降り続き、これまでで最も長かったという。</p><h2>この記事は会員限定です</h2>
        <button>有料会員登録</button>"""
    ),
}

SOFT_404 = {
    "title": "<title>Page not found | Garden</title><h1>Page not found</h1><p>Try the search.</p>",
    "number": "<title>404</title><p>Nothing here.</p>",
    "with links": (
        """<title>Garden club</title><h1>Oops! That page can't be found.</h1><p>It looks like nothing was found at this
        location.</p><ul><li><a>Spring bulbs</a><li><a>Winter care</a></ul>"""
    ),
    "words only": "<title>Shop</title><p>Sorry, the page you are looking for could not be found.</p>",
    "german": "<title>Seite nicht gefunden - Verein</title><p>Die Seite existiert nicht mehr.</p>",
    "french": "<h1>Page introuvable</h1><p>La page demandée n'existe pas.</p>",
    "spanish": "<title>Página no encontrada</title>" + "<p>La página que busca no existe.</p>",
    "portuguese": "<title>Página não encontrada</title><p>Volte ao início.</p>",
    "italian": "<title>Pagina non trovata</title><p>Torna alla home.</p>",
    "dutch": "<title>Pagina niet gevonden</title><p>Ga terug.</p>",
    "polish": "<title>Strona nie istnieje</title><p>Wróć.</p>",
    "russian": "<title>Страница не найдена</title><p>Вернитесь на главную.</p>",
    "turkish": "<title>Sayfa bulunamadı</title><p>Ana sayfa</p>",
    "japanese": "<title>お探しのページは見つかりませんでした</title><p>トップへ戻る</p>",
    "chinese": "<title>您访问的页面不存在</title><p>返回首页</p>",
    "korean": "<title>페이지를 찾을 수 없습니다</title><p>홈으로</p>",
}

OK = {
    "plain article": f"<title>The station</title><h1>The station</h1>{ARTICLE}",
    "about captchas, with one on its form": (
        f"""<title>Access denied: how our form learned to say no</title><script
        src="https://www.google.com/recaptcha/api.js">
        </script><h1>Access denied: how our form learned to say no</h1><p>The riddle asks whether you are human, wants
        JavaScript and sets one cookie.</p>{ARTICLE}<form><textarea></textarea><div class="g-recaptcha"></div></form>"""
    ),
    "about missing pages": (
        f"""<title>404: what a page not found should say</title><h1>404: what a page not found should
        say</h1><p>“We could
        not find the page you asked for” is enough. Please log in is no longer given as an example. The sentence on
        cookies has been removed.</p>{ARTICLE}"""
    ),
    "about paywalls": (
        f"""<title>Subscribe to continue reading: a history</title><h1>Subscribe to continue reading: a history</h1>
        <p>“This article is for subscribers only” was first seen in print. You have reached your limit, readers were
        told.</p>{ARTICLE}<button>Subscribe to our newsletter</button>"""
    ),
    "about unusual traffic": (
        f"""<title>Unusual traffic in the mountains</title><p>Automated requests for tickets and too many requests for
        beds: prove you are human, said the hut keeper.</p>{ARTICLE}"""
    ),
    "about cookies": (
        f"""<title>Cookies we like</title><p>Accept all cookies your grandmother bakes. Our partners in baking
        agree, and
        personal data is not needed.</p>{ARTICLE}<button>Accept</button>"""
    ),
    "scripts of a watching service": (
        f"""<title>Shop</title><script>window.KPSDK={{}};KPSDK.now=1</script>
        <script src="/cdn-cgi/challenge-platform/scripts/jsd/main.js"></script>{ARTICLE}"""
    ),
    "a log-in box beside the text": f"<title>Forum</title><form>Login <input type=password></form>{ARTICLE}",
    "a forum index with a log-in box": (
        "<title>Allotment forum</title><form><input name=u><input type=password><button>Log in</button></form><ul>"
        + "".join(f"<li><a href='/t/{n}'>Topic number {n} about beds and fences</a> 12 replies" for n in range(40))
        + "</ul>"
    ),
    "log in to reply": "<title>Thread</title><p>Which glue do you use?</p><p>Hide glue. Please log in to reply.</p>",
    "contact form that asks for a human": (
        """<title>Contact</title><p>Write to us.</p><form><textarea></textarea> Confirm you are not a robot
        <div class="g-recaptcha"></div><button>Send</button></form>"""
    ),
    "contact form with a captcha already loaded": (
        """<title>Contact</title><p>Write to us, we answer soon.</p><form><textarea></textarea>
        <input name="cf-turnstile-response">
        <script>initGeetest({}); window.KPSDK={};KPSDK.now=1</script><button>Send</button></form>"""
    ),
    "cookie banner over an article": (
        f"""<title>Bread</title>{ARTICLE}<div class="cookie-banner">We use cookies and similar technologies. With your
        consent our partners process personal data for personalised ads.<button>Accept all</button></div>"""
    ),
    "free although metadata is there": (
        f"""<title>Bread</title><script type="application/ld+json">{{"isAccessibleForFree": true}}</script>{ARTICLE}
        <a>Subscribe</a>"""
    ),
    "whole text of a paid article": (
        '<title>Road</title><script type="application/ld+json">{"isAccessibleForFree":false}</script>' + ARTICLE * 8
    ),
    "short page": "<title>Example</title><h1>Example</h1><p>This domain is for use in documents. Ask nobody.</p>",
    "short page with a notice for comments": (
        """<title>Note</title><p>The ferry runs again from Monday, and the fare is the same as last year. Dogs travel
        free.</p><noscript>Please enable JavaScript to view the comments.</noscript><script src="c.js"></script>"""
    ),
    "a table of status codes": (
        "<title>Status codes</title><table><tr><td>403<td>Access denied<tr><td>404<td>Not found"
        "<tr><td>429<td>Too many requests</table>"
    ),
    "a glossary entry": f"<title>HTTP 404 - Glossary</title><h1>HTTP 404</h1>{ARTICLE}",
    "chinese article about verification": (
        "<title>验证码的历史：人机验证如何改变网站</title>"
        + "<p>最早的验证码出现在二十年前，当时的网站每天都会收到大量自动提交的表单。</p>" * 3
        + "<p>后来研究人员发现，许多访客因为看不清图片而放弃，于是设计了新的方法。今天的系统大多在后台运行。</p>" * 3
    ),
}


@pytest.mark.parametrize("name", BLOCKED)
def test_a_wall_is_told_as_blocked_with_its_evidence(name: str) -> None:
    status, html = BLOCKED[name]
    verdict = classify_html(html, status=status, url="https://example.test/page")
    assert verdict.outcome == "blocked", verdict
    assert verdict.evidence


@pytest.mark.parametrize(
    ("outcome", "name", "html"),
    [
        (outcome, name, html)
        for outcome, table in (
            ("login", LOGIN),
            ("consent", CONSENT),
            ("paywall", PAYWALL),
            ("soft_404", SOFT_404),
        )
        for name, html in table.items()
    ],
)
def test_what_stands_in_place_of_the_page_is_told(outcome: str, name: str, html: str) -> None:
    verdict = classify_html(html, url="https://example.test/page")
    assert verdict.outcome == outcome, verdict
    assert verdict.evidence


@pytest.mark.parametrize("name", OK)
def test_a_page_with_content_is_ok_whatever_words_are_in_it(name: str) -> None:
    verdict = classify_html(OK[name], url="https://example.test/page")
    assert verdict == ("ok", "")


def test_a_challenge_header_decides_alone() -> None:
    verdict = classify_html(f"<title>x</title>{ARTICLE}", headers={"cf-mitigated": "challenge"}, status=403)
    assert verdict.outcome == "blocked"
    assert "cf-mitigated" in verdict.evidence


def test_a_redirect_to_a_login_address_counts_as_evidence() -> None:
    html = (
        "<title>Portal</title><form><input name=u><input type=password><button>Go</button></form>" + "<a>Help</a>" * 80
    )
    assert (
        classify_html(html, url="https://a.test/doc/1", final_url="https://a.test/login?next=/doc/1").outcome == "login"
    )


@pytest.mark.parametrize(
    ("status", "html", "outcome"),
    [
        (404, "<title>Not here</title>", "http_error"),
        (404, "<title>Log in</title><form><input type=password></form>", "http_error"),
        (410, f"<p>Gone</p>{ARTICLE}", "http_error"),
        (403, "<title>403 Forbidden</title><center>nginx</center>", "http_error"),
        (500, "<title>Error</title><p>Something broke.</p>", "http_error"),
        (503, "<title>Maintenance</title><p>Back at noon.</p>", "http_error"),
        (401, "<title>Protected</title>", "login"),
        (402, "<title>Pay</title>", "paywall"),
        (200, "", "empty"),
        (200, "<html><body></body></html>", "empty"),
    ],
)
def test_status_and_emptiness(status: int, html: str, outcome: str) -> None:
    verdict = classify_html(html, status=status)
    assert verdict.outcome == outcome, verdict
    if status >= 400 and outcome == "http_error":
        assert f"HTTP {status}" in verdict.evidence


@pytest.mark.parametrize(
    ("status", "outcome"),
    [(200, "ok"), (401, "login"), (402, "paywall"), (404, "http_error"), (429, "blocked"), (500, "http_error")],
)
def test_without_html_the_status_decides(status: int, outcome: str) -> None:
    assert classify_status(status).outcome == outcome


def test_hostile_pages_are_judged_in_bounded_time() -> None:
    """Deep nesting, endless titles and long runs of almost-phrases: none may take more than a moment."""
    import time

    pages = [
        "<div>" * 60_000 + "text",
        f"<title>{'page not ' * 20_000}</title>",
        f"<p>{'please verify that you are ' * 20_000}",
        f"<title>{'sign in ' * 15}</title><p>{'cookies and our partners ' * 200}<button>Accept</button>",
        "<a>" * 5_000 + "<p>x" * 5_000,
        "<noscript>" + "enable " * 50_000 + "</noscript><script></script>",
    ]
    for page in pages:
        began = time.perf_counter()
        classify_html(page)
        assert time.perf_counter() - began < 2.0, page[:40]
