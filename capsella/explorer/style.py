"""How the page looks. Sizes in CSS only: pictures are sent as small as they are, and enlarged with square pixels."""

from typing import Any

# Of every event: no spinner over what is about to change, and no public API: the page's functions take its own state.
QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}

HEAD = '<meta name="description" content="Turn the dials of a capsule and watch what it believes">'

CSS = """
.gradio-container { max-width: 1500px !important; }
.unseen { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
figure { margin: 0 0 0.75rem 0; }
figcaption { font-size: 0.85rem; overflow-wrap: anywhere; }
.picture img { width: 100%; image-rendering: pixelated; border: 1px solid #777; }
.picture { width: 168px; }
.drawn, .seen, .pair, .swept { display: flex; flex-wrap: wrap; gap: 1rem; }
.drawn { min-height: 215px; }
.drawn img { background: black; }
.seen > div { flex: 1 1 260px; min-width: 0; }
.plot img { max-width: 100%; height: auto; background: white; }
.pair > * { flex: 1 1 320px; min-width: 0; }
.swept { align-items: flex-start; }
.swept > figure { flex: 1 1 260px; }
.swept > figure:first-child { flex: 0 0 170px; }
.bars, .numbers { border-collapse: collapse; font-size: 0.9rem; width: 100%; }
.bars caption, .numbers caption { text-align: left; font-weight: bold; padding: 2px 0; }
.bars *, .numbers * { border: 0 !important; }
.bars th, .bars td, .numbers th, .numbers td { text-align: left; height: auto; padding: 1px 6px; font-weight: normal; }
.bars tbody th { max-width: 12rem; overflow-wrap: anywhere; }
.bars .track { width: 40%; }
.bars .bar { height: 0.8rem; background: #1f6f9f; min-width: 1px; }
.bars td:last-child { white-space: nowrap; }
.bars .bar.first { background: repeating-linear-gradient(45deg, #c2571a 0 6px, #8f3d0e 6px 9px); }
.problem { border-left: 4px solid #c62828; padding-left: 0.5rem; font-weight: bold; }
.thumbnails { display: grid; grid-template-columns: repeat(auto-fill, minmax(58px, 1fr)); gap: 4px; }
.thumbnails button { border: 1px solid #777; background: none; padding: 2px; cursor: pointer; }
.thumbnails button:focus-visible { outline: 3px solid #c2571a; }
.thumbnails img { width: 100%; image-rendering: pixelated; display: block; }
#canvas canvas { width: 224px; max-width: 100%; touch-action: none; border: 1px solid #777; cursor: crosshair; }
#canvas .clear { border: 1px solid #777; padding: 2px 10px; border-radius: 4px; }
#dials .form { display: grid; width: 100%; grid-template-columns: repeat(4, minmax(0, 1fr)); gap: 6px; border: 0; }
#dials .dial { min-width: 0 !important; padding: 4px 6px; }
/* Where each dial started: a mark in the middle of its range. */
#dials .slider_input_container { gap: 3px; }
#dials .slider_input_container span { font-size: 0.7rem; min-width: 0; flex: none; }
#dials .slider_input_container input[type=range] { min-width: 0; flex: 1 1 0; }
#dials .head { gap: 4px; }
#dials .head input { min-width: 0; width: 5rem; }
#dials .dial input[type=range] { background-image: linear-gradient(#777, #777); background-size: 2px 100%;
  background-position: center; background-repeat: no-repeat; }
@media (max-width: 1000px) { #dials .form { grid-template-columns: repeat(2, minmax(0, 1fr)); } }
@media (max-width: 480px) { #dials .form { grid-template-columns: minmax(0, 1fr); } }
"""
