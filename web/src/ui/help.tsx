// What a figure means: shown while its label is pointed at or focused.

import type { ComponentChildren } from 'preact';
import { useEffect, useId, useLayoutEffect, useRef } from 'preact/hooks';
import { Store, useStore } from './store';

interface Tip {
  text: string;
  anchor: DOMRect;
}
const tip = new Store<Tip | null>(null);

/** A label that explains itself. */
export function Term({ help, children }: { help: string; children: ComponentChildren }) {
  const id = useId();
  const show = (event: { currentTarget: Element }): void => tip.set({ text: help, anchor: event.currentTarget.getBoundingClientRect() });
  const hide = (): void => tip.set(null);
  useEffect(() => hide, []);
  return (
    <button type="button" class="term" aria-describedby={id} onMouseEnter={show} onMouseLeave={hide} onFocus={show} onBlur={hide}>
      {children}
      <span id={id} class="unseen">
        {help}
      </span>
    </button>
  );
}

/** Where the explanation appears; once in the page. */
export function TipLayer() {
  const shown = useStore(tip);
  const box = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    if (shown === null || box.current === null) return;
    const { width, height } = box.current.getBoundingClientRect();
    const left = Math.max(8, Math.min(shown.anchor.left, document.documentElement.clientWidth - width - 8));
    const below = shown.anchor.bottom + 6;
    const top = below + height > window.innerHeight - 8 ? Math.max(8, shown.anchor.top - height - 6) : below;
    box.current.style.transform = `translate(${Math.round(left)}px, ${Math.round(top)}px)`;
  }, [shown]);
  useEffect(() => {
    const escape = (event: KeyboardEvent): void => {
      if (event.key === 'Escape') tip.set(null);
    };
    const hide = (): void => tip.set(null);
    document.addEventListener('keydown', escape);
    window.addEventListener('scroll', hide, { passive: true });
    return () => {
      document.removeEventListener('keydown', escape);
      window.removeEventListener('scroll', hide);
    };
  }, []);
  if (shown === null) return null;
  return (
    <div ref={box} class="tip" aria-hidden="true">
      {shown.text}
    </div>
  );
}
