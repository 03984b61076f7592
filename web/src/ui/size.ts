import type { RefObject } from 'preact';
import { useLayoutEffect, useState } from 'preact/hooks';

/** The width of an element in CSS pixels, as it changes. */
export function useWidth(element: RefObject<HTMLElement | null>): number {
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => {
    const target = element.current;
    if (target === null) return;
    setWidth(Math.floor(target.clientWidth));
    const observer = new ResizeObserver(() => setWidth(Math.floor(target.clientWidth)));
    observer.observe(target);
    return () => observer.disconnect();
  }, [element]);
  return width;
}
