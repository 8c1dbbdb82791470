// Turns, shifts and scales images about their centre, as `change_images` in `images.py`.

const clamp = (x, low, high) => Math.min(Math.max(x, low), high);

/** The pixels [c h w] of a changed image, with the border repeated. */
export function turned(pixels, [channels, height, width], name, amount) {
  const angle = name === "turn" ? (amount * Math.PI) / 180 : 0;
  const zoom = name === "scale" ? amount / 100 : 1;
  const shift = name === "shift" ? amount : 0;
  const c = Math.cos(angle) / zoom;
  const s = Math.sin(angle) / zoom;
  const out = new Float32Array(pixels.length);
  for (let row = 0; row < height; row++) {
    for (let column = 0; column < width; column++) {
      const x = column + 0.5 - width / 2;
      const y = row + 0.5 - height / 2;
      const fromX = clamp(c * x + s * y - shift + width / 2 - 0.5, 0, width - 1);
      const fromY = clamp(-s * x + c * y + height / 2 - 0.5, 0, height - 1);
      const left = Math.min(Math.floor(fromX), Math.max(width - 2, 0));
      const top = Math.min(Math.floor(fromY), Math.max(height - 2, 0));
      const right = Math.min(left + 1, width - 1);
      const below = Math.min(top + 1, height - 1);
      const across = fromX - left;
      const down = fromY - top;
      for (let k = 0; k < channels; k++) {
        const at = (r, q) => pixels[(k * height + r) * width + q];
        const upper = at(top, left) * (1 - across) + at(top, right) * across;
        const lower = at(below, left) * (1 - across) + at(below, right) * across;
        out[(k * height + row) * width + column] = upper * (1 - down) + lower * down;
      }
    }
  }
  return out;
}
