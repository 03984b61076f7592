import { defineConfig } from 'vite';

// `npm run dev` serves the sources and passes everything else on to a running server.
const server = process.env.DEEPINFER_URL ?? 'http://127.0.0.1:8000';
const routes = ['/v1', '/metrics', '/health', '/version', '/load', '/debug'];

export default defineConfig({
  base: './', // works behind a proxy that adds a prefix
  esbuild: { jsx: 'automatic', jsxImportSource: 'preact' },
  build: {
    target: 'es2022',
    assetsInlineLimit: 0, // the content security policy allows files of this server alone
    modulePreload: { polyfill: false },
  },
  server: { proxy: Object.fromEntries(routes.map((route) => [route, server])) },
});
