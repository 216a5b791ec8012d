"""How the report looks: light or dark as the reader's system is, one accent, red only for what must not be."""

STYLE = """
:root{color-scheme:light dark;--ground:light-dark(#f5f5f3,#0f1114);--card:light-dark(#fff,#171a1f);
--line:light-dark(#e6e6e1,#2a2f37);--text:light-dark(#1b1d21,#eceef1);--muted:light-dark(#62666d,#9aa1ab);
--accent:light-dark(#2a56cf,#8caeff);--good:light-dark(#1b7a46,#5fcf92);--bad:light-dark(#cf2b35,#ff6b6e);
--gap:light-dark(#f7dcc8,#4a2f1d);--process:light-dark(#8a3ffc,#c49bff);--session:light-dark(#0f766e,#4fd1c5);
--network:light-dark(#96600a,#efb547);--server:light-dark(#b1235f,#ff8fb8);--clock:light-dark(#62666d,#9aa1ab);
font:15px/1.5 Inter,system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue","Liberation Sans",sans-serif;
font-variant-numeric:tabular-nums;background:var(--ground);color:var(--text)}
*{box-sizing:border-box}body{margin:0;overflow-wrap:anywhere}
main{max-width:1280px;margin:0 auto;padding:32px clamp(14px,3vw,40px) 48px;display:grid;gap:20px}
h1,h2,p,ul{margin:0;padding:0}h1{font-size:32px;line-height:1.2;letter-spacing:-.02em;font-weight:680}
h2{font-size:16px;font-weight:640;margin-bottom:10px}
header{display:grid;gap:6px}header.good h1{color:var(--good)}header.bad h1{color:var(--bad)}
header p,.note,footer{color:var(--muted)}.note{font-size:13px;margin-top:10px;max-width:72ch}
.brand{font-size:13px;font-weight:600}
section{background:var(--card);border:1px solid var(--line);border-radius:14px;padding:18px 20px;min-width:0}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(170px,1fr));gap:18px}
.tiles div{display:grid;align-content:start}
.tiles b{font-size:26px;font-weight:640;letter-spacing:-.02em;line-height:1.25}
.tiles span{color:var(--muted);font-size:13px}
.columns{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,460px),1fr));gap:20px;align-items:start}
.problems{list-style:none;display:grid;gap:6px;border:1px solid var(--bad);border-radius:14px;padding:14px 20px;
color:var(--bad);font-weight:600;max-height:320px;overflow:auto}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:14px}
th{text-align:left;color:var(--muted);font-weight:500;font-size:13px}
th.number,td.number{text-align:right}td.number:last-child{white-space:nowrap}
th,td{padding:5px 14px 5px 0;border-bottom:1px solid var(--line);white-space:nowrap;vertical-align:top}
tr:last-child td{border-bottom:0}td:last-child{white-space:normal}
th:last-child,td:last-child{padding-right:0}
td.wide{width:45%;vertical-align:middle}
.bar{display:block;height:10px;min-width:2px;border-radius:3px;background:var(--gap);outline:1px solid var(--line)}
.legend{display:flex;flex-wrap:wrap;gap:4px 18px;color:var(--muted);font-size:13px;margin-bottom:12px}
.key{display:inline-flex;align-items:center;gap:6px}.key i{width:12px;height:12px;border-radius:3px}
.k-term{background:var(--accent)}.k-gap{background:var(--gap)}.k-process{background:var(--process)}
.k-session{background:var(--session)}.k-network{background:var(--network)}.k-server{background:var(--server)}
.k-clock{background:var(--clock)}.k-overlap{background:var(--bad)}
.strips{display:grid;gap:14px;overflow-x:auto}svg{display:block;width:100%;min-width:760px;height:auto}
svg text{font-size:11px;fill:var(--muted)}svg .node{font-size:12px;fill:var(--text)}
svg .time:not([text-anchor]){text-anchor:middle}
svg .what{font-size:9.5px}.lane,.tick{stroke:var(--line);stroke-width:1}.tick{stroke-dasharray:2 3}
.term{fill:var(--accent)}.pale{opacity:.4}.gap{fill:var(--gap)}.overlap{fill:var(--bad)}
.stem{stroke-width:1.2}.band{opacity:.35}
svg .f-process{fill:var(--process);stroke:none}svg .f-session{fill:var(--session)}svg .f-network{fill:var(--network)}
svg .f-server{fill:var(--server)}svg .f-clock{fill:var(--clock)}
svg line.f-process{stroke:var(--process)}svg line.f-session{stroke:var(--session)}
svg line.f-network{stroke:var(--network)}svg line.f-server{stroke:var(--server)}svg line.f-clock{stroke:var(--clock)}
code{font:13px ui-monospace,"SF Mono",Menlo,Consolas,"Liberation Mono",monospace;color:var(--text)}
@media print{section{break-inside:avoid}}
"""
"""A style sheet that asks for nothing from anywhere."""
