import { useEffect, useState } from 'preact/hooks';

/** A value that components follow. */
export class Store<T> {
  private readonly listeners = new Set<() => void>();
  constructor(private current: T) {}

  get value(): T {
    return this.current;
  }
  set(value: T): void {
    this.current = value;
    for (const listener of [...this.listeners]) listener();
  }
  subscribe(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }
}

export function useStore<T>(store: Store<T>): T {
  const [, redraw] = useState({});
  const seen = store.value;
  useEffect(() => {
    if (store.value !== seen) redraw({}); // it changed before anybody listened
    return store.subscribe(() => redraw({}));
  }, [store]);
  return seen;
}
