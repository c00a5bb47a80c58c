// One zoom and one place, shared by all panels of the inspector: by wheel, fingers, drag or keys.

const MOST = 16;

/** A camera over pictures of `width` x `height`; `moved` is called when it changes. */
export function camera(width, height, moved) {
  let zoom = 1;
  let [x, y] = [0.5, 0.5]; // the middle of what is seen, as a share of the picture
  let cursor = null;

  const clamp = () => {
    const half = 0.5 / zoom;
    x = Math.min(1 - half, Math.max(half, x));
    y = Math.min(1 - half, Math.max(half, y));
  };

  /** Zoom so that the picture's point (px, py) stays where it is on screen. */
  const zoomTo = (wanted, px, py) => {
    const next = Math.min(MOST, Math.max(1, wanted));
    x = px + ((x - px) * zoom) / next;
    y = py + ((y - py) * zoom) / next;
    zoom = next;
    clamp();
    moved();
  };

  const self = {
    get zoom() {
      return zoom;
    },
    fit() {
      [zoom, x, y] = [1, 0.5, 0.5];
      moved();
    },
    zoomBy(factor) {
      zoomTo(zoom * factor, cursor?.x ?? x, cursor?.y ?? y);
    },
    /** Where the picture lies on a canvas of this size. */
    box(canvasWidth, canvasHeight) {
      const scale = Math.min(canvasWidth / width, canvasHeight / height) * zoom;
      const [w, h] = [width * scale, height * scale];
      return { x: canvasWidth / 2 - x * w, y: canvasHeight / 2 - y * h, width: w, height: h, scale };
    },
    attach,
  };

  /** The point of the picture under a pointer, as shares of it. */
  const under = (canvas, event) => {
    const box = self.box(canvas.clientWidth, canvas.clientHeight);
    return { x: (event.offsetX - box.x) / box.width, y: (event.offsetY - box.y) / box.height };
  };

  function attach(canvas, point) {
    const fingers = new Map();
    let spread = 0;
    canvas.addEventListener(
      'wheel',
      (event) => {
        if (!event.ctrlKey && !event.shiftKey) return;
        event.preventDefault();
        const turn = event.deltaY || event.deltaX;
        const at = under(canvas, event);
        zoomTo(zoom * Math.exp(-turn / 300), at.x, at.y);
      },
      { passive: false },
    );
    canvas.addEventListener('dblclick', (event) => {
      const at = under(canvas, event);
      if (zoom > 1) self.fit();
      else zoomTo(4, at.x, at.y);
    });
    canvas.addEventListener('pointerdown', (event) => {
      fingers.set(event.pointerId, event);
      canvas.setPointerCapture(event.pointerId);
      spread = apart(fingers);
    });
    canvas.addEventListener('pointermove', (event) => {
      const at = under(canvas, event);
      const inside = at.x >= 0 && at.x < 1 && at.y >= 0 && at.y < 1;
      cursor = inside ? at : null;
      point(inside ? Math.floor(at.x * width) : null, inside ? Math.floor(at.y * height) : null);
      const before = fingers.get(event.pointerId);
      if (!before) return;
      fingers.set(event.pointerId, event);
      if (fingers.size === 2) {
        const now = apart(fingers);
        if (spread) zoomTo((zoom * now) / spread, at.x, at.y);
        spread = now;
      } else if (zoom > 1) {
        const box = self.box(canvas.clientWidth, canvas.clientHeight);
        x -= (event.clientX - before.clientX) / box.width;
        y -= (event.clientY - before.clientY) / box.height;
        clamp();
        moved();
      }
    });
    const lift = (event) => {
      fingers.delete(event.pointerId);
      spread = 0;
    };
    canvas.addEventListener('pointerup', lift);
    canvas.addEventListener('pointercancel', lift);
    canvas.addEventListener('pointerleave', () => {
      cursor = null;
      point(null, null);
    });
  }

  return self;
}

function apart(fingers) {
  if (fingers.size !== 2) return 0;
  const [a, b] = [...fingers.values()];
  return Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY);
}
